/** Storage of a browser, in memory. */
export class MemoryStorage implements Storage {
    private readonly items = new Map<string, string>();
    constructor(private readonly charsMax = Infinity) {}
    get length(): number {
        return this.items.size;
    }
    key(index: number): string | null {
        return [...this.items.keys()][index] ?? null;
    }
    getItem(name: string): string | null {
        return this.items.get(name) ?? null;
    }
    setItem(name: string, value: string): void {
        if (value.length > this.charsMax) throw new Error("QuotaExceededError");
        this.items.set(name, value);
    }
    removeItem(name: string): void {
        this.items.delete(name);
    }
    clear(): void {
        this.items.clear();
    }
}
