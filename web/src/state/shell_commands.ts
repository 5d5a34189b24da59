/** The user's own shell commands (`!ls`) while they run: one at a time in each session, the others wait. */

import { signal } from "@preact/signals";
import { shell, type Target } from "./actions";

export interface ShellCommand {
    command: string;
    startedAt: number;
    end: AbortController;
}

/** By session, the oldest first. */
export const shellCommands = signal<ReadonlyMap<string, readonly ShellCommand[]>>(new Map());

export async function runShell(target: Target, sessionId: string, command: string): Promise<void> {
    const entry: ShellCommand = { command, startedAt: Date.now(), end: new AbortController() };
    change(sessionId, (commands) => [...commands, entry]);
    try {
        await shell(target, sessionId, command, entry.end.signal);
    } finally {
        change(sessionId, (commands) => commands.filter((other) => other !== entry));
    }
}

/** Stop the running command; the server ends its processes. */
export function stopShell(sessionId: string): void {
    shellCommands.value.get(sessionId)?.[0]?.end.abort();
}

function change(sessionId: string, update: (commands: readonly ShellCommand[]) => readonly ShellCommand[]): void {
    const commands = update(shellCommands.value.get(sessionId) ?? []);
    const all = new Map(shellCommands.value);
    if (commands.length > 0) all.set(sessionId, commands);
    else all.delete(sessionId);
    shellCommands.value = all;
}
