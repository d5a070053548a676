// The stream: one snapshot a second, and the truth about the connection when there is none.
//
//   live     snapshots come
//   opening  the first connection is made
//   stale    lost, or silent for some seconds; it is tried again by itself
//   gone     the pool took its leave, or nobody has answered for a while; still tried again
//   refused  the server answers, but with an error: its text is shown

const SILENT_MS = 4000; // snapshots come every second
const GONE_MS = 8000; // a front end that died is replaced sooner
const AGAIN_MS = 2000;

export class Stream {
  constructor(url, show, tell) {
    this.url = url;
    this.show = show;
    this.tell = tell;
    this.leave = ""; // what the server said when it ended the stream
    this.lost = null; // since when there is no connection
  }

  // A page that is left, and perhaps kept by the browser to come back to, watches no more.
  start() {
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
    this.open();
  }

  close() {
    clearTimeout(this.silence);
    clearTimeout(this.again);
    this.source.close();
  }

  open() {
    this.source = new EventSource(this.url);
    this.source.addEventListener("message", (event) => this.hear(event));
    this.source.addEventListener("end", (event) => {
      this.leave = JSON.parse(event.data);
    });
    this.source.addEventListener("error", () => this.fail());
    this.listen();
  }

  hear(event) {
    this.lost = null;
    this.leave = "";
    this.listen();
    this.show(JSON.parse(event.data));
    this.tell("live", "Live");
  }

  // Somebody may hold the connection open and say nothing.
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      if (this.lost === null) this.tell("stale", "No news from the server; these figures are old");
    }, SILENT_MS);
  }

  fail() {
    this.lost ??= Date.now();
    clearTimeout(this.silence);
    // EventSource tries again by itself, unless it got an answer that is no stream.
    if (this.source.readyState === EventSource.CLOSED) this.explain();
    else this.say();
  }

  say() {
    if (this.leave) {
      this.tell("gone", `The pool has left: ${this.leave}. Waiting for it to come back`);
    } else if (Date.now() - this.lost >= GONE_MS) {
      this.tell("gone", "Nobody answers: the pool is gone. Waiting for it to come back");
    } else {
      this.tell("stale", "Connection lost, reconnecting; these figures are old");
    }
  }

  async explain() {
    try {
      const answer = await fetch(this.url, { signal: AbortSignal.timeout(AGAIN_MS) });
      const kind = answer.headers.get("content-type") ?? "";
      if (kind.startsWith("application/json")) {
        this.tell("refused", `${(await answer.json()).error}. Trying again`);
      } else {
        await answer.body?.cancel();
      }
    } catch {
      this.say();
    }
    clearTimeout(this.again);
    this.again = setTimeout(() => this.open(), AGAIN_MS);
  }
}
