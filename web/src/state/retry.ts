import { RequestError } from "../api/http";

/** First and longest delay between two attempts. Milliseconds. */
const RETRY_MS_MIN = 200;
const RETRY_MS_MAX = 5_000;

/** Repeat an idempotent request until the server answers, or until the caller does not need it any more. */
export async function retryWhileAway<T>(request: () => Promise<T>, isOver: () => boolean = () => false): Promise<T> {
    for (let delay = RETRY_MS_MIN; ; delay = Math.min(2 * delay, RETRY_MS_MAX)) {
        try {
            return await request();
        } catch (error) {
            const mayRetry = error instanceof RequestError && (error.isTransient || error.code === "workspace_closing");
            if (!mayRetry || isOver()) throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, delay));
    }
}
