/** Typed calls of the routes in the OpenAPI document. */

import { request, type Query } from "./http";
import type { paths } from "./types";

type Method = "get" | "post" | "put" | "patch" | "delete";
type Path = keyof paths;
type Operation<P extends Path, M extends Method> = NonNullable<paths[P][M]>;
type MethodOf<P extends Path> = { [M in Method]: [Operation<P, M>] extends [never] ? never : M }[Method];

type Parameters<O, K extends string> = O extends { parameters: { [N in K]?: infer T } } ? T : undefined;
type Body<O> = O extends { requestBody: { content: { "application/json": infer T } } } ? T : undefined;
type Json<R> = R extends { content: { "application/json": infer T } } ? T : never;
/** The reply with JSON, whatever its successful status. */
export type Reply<P extends Path, M extends MethodOf<P>> =
    Operation<P, M> extends { responses: infer R } ? Json<R[keyof R]> : never;

/** A field for what the route needs, and none for the rest. */
type Field<N extends string, T> = [T] extends [undefined]
    ? { [K in N]?: never }
    : Record<string, never> extends T
      ? { [K in N]?: T }
      : undefined extends T
        ? { [K in N]?: T }
        : { [K in N]: T };

export type CallOptions<P extends Path, M extends MethodOf<P>> = Field<"path", Parameters<Operation<P, M>, "path">> &
    Field<"query", Parameters<Operation<P, M>, "query">> &
    Field<"body", Body<Operation<P, M>>> & { signal?: AbortSignal; limitMs?: number | null };

/** Call a route and return its reply. Throws a RequestError. */
export async function call<P extends Path, M extends MethodOf<P>>(
    method: M,
    route: P,
    options: CallOptions<P, M>,
): Promise<Reply<P, M>> {
    const { path, query, body, signal, limitMs } = options as {
        path?: Record<string, string>;
        query?: Query;
        body?: unknown;
        signal?: AbortSignal;
        limitMs?: number | null;
    };
    return request<Reply<P, M>>(method.toUpperCase(), fillIn(route, path), {
        query,
        body,
        ...(signal ? { signal } : {}),
        ...(limitMs !== undefined ? { limitMs } : {}),
    });
}

/** Return the path of a route below /v1, with its parameters. */
export function fillIn(route: string, values: Record<string, string> = {}): string {
    const value = (_: string, name: string) => encodeURIComponent(values[name] ?? "");
    return route.replace(/^\/v1/, "").replace(/\{(\w+)\}/g, value);
}
