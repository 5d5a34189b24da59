import { expect, test } from "vitest";
import { call, fillIn } from "../src/api/call";

test("parameters of a path are escaped", () => {
    expect(fillIn("/v1/workspaces/{id}/sessions/{sid}", { id: "a/b", sid: "#?" })).toBe(
        "/workspaces/a%2Fb/sessions/%23%3F",
    );
});

// Never called: tsc checks the types.
export async function typesOfCalls(): Promise<void> {
    const path = { id: "w" };
    const sessions = await call("get", "/v1/workspaces/{id}/sessions", { path });
    sessions[0]?.title satisfies string | undefined;
    const submitted = await call("post", "/v1/workspaces/{id}/agent", { path, body: { prompt: "x" } });
    submitted.position satisfies number;
    // @ts-expect-error The path has a parameter.
    await call("get", "/v1/workspaces/{id}/sessions", {});
    // @ts-expect-error The route has no such method.
    await call("put", "/v1/workspaces/{id}/sessions", { path });
    // @ts-expect-error The body has no such field.
    await call("post", "/v1/workspaces/{id}/agent", { path, body: { text: "x" } });
}
