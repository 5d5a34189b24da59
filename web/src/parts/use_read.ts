import { useEffect } from "preact/hooks";
import { RequestError } from "../api/http";
import { retryWhileAway } from "../state/retry";

/**
 * Read from the server when an input changes, and repeat it while the server is away. With the `connects` of a
 * workspace as an input, a read that was refused is repeated after a reconnect.
 *
 * Only the latest read of a component is reported. `onError` receives the errors of the server, also of those attempts
 * that are repeated; that no server answers is shown by the banner.
 */
export function useRead<T>(
    read: () => Promise<T>,
    onResult: (result: T) => void,
    onError: (error: RequestError) => void,
    inputs: readonly unknown[],
): void {
    useEffect(() => {
        let isOver = false;
        const attempt = async () => {
            try {
                return await read();
            } catch (error) {
                if (!isOver && error instanceof RequestError && error.status !== 0) onError(error);
                throw error;
            }
        };
        retryWhileAway(attempt, () => isOver).then(
            (result) => {
                if (!isOver) onResult(result);
            },
            (error: unknown) => {
                if (!(error instanceof RequestError)) throw error;
            },
        );
        return () => {
            isOver = true;
        };
    }, inputs);
}
