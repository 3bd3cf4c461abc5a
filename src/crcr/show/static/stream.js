// What changed, as one stream for all tabs of a browser: it opens only six connections to a server, and a stream in
// each tab would use them up. The tab that holds a lock listens and passes on what it hears; when it goes, the next
// in the queue goes on from the last change. Where a browser cannot share (no locks without HTTPS), each tab listens
// for itself while somebody looks at it.
//
// `crcr.follow({ address, after, group, hear, missed, tell, refused })` begins and returns how to end it. `hear` gets
// every change of every upstream, `missed` says that some may have been missed, `tell` gets "on" or "lost", and
// `refused` says that the relay would not open the stream. `group` keeps readers with different eyes apart.
"use strict";

(() => {
  const { pause } = globalThis.crcr;
  const REFUSALS = 5;
  const CHECK_MS = 5000;
  // The relay says something every 15 seconds. A connection that died without a word, or whose other end hangs, is
  // known by its silence only.
  const SILENCE_MS = 40000;
  const PATIENCE_MS = 10000;

  // One connection that is made anew whenever it is lost. `place` says after which change it begins.
  class Line {
    #source = null;
    #retry = 0;
    #failures = 0;
    #heardAt = 0;

    constructor(address, place, { event, tell, refused }) {
      Object.assign(this, { address, place, event, tell, refused, state: "lost" });
    }

    open() {
      this.close();
      this.#heardAt = Date.now();
      const address = new URL(this.address, location.href);
      if (this.place()) address.searchParams.set("after", this.place());
      const source = new EventSource(address);
      this.#source = source;
      const heard = ({ type, lastEventId, data }) => {
        if (source !== this.#source) return;
        this.#heardAt = Date.now();
        this.event(type, lastEventId, data);
      };
      for (const type of ["change", "reset", "beat", "health"]) source.addEventListener(type, heard);
      source.addEventListener("open", () => {
        if (source !== this.#source) return;
        this.#heardAt = Date.now();
        this.#failures = 0;
        this.#become("on");
      });
      source.addEventListener("error", () => { if (source === this.#source) this.#failed(source); });
    }

    close() {
      clearTimeout(this.#retry);
      this.#source?.close();
      this.#source = null;
    }

    // Whether it still lives cannot be known, so it is made anew; nothing is lost by it.
    renew() {
      this.#become("lost");
      this.open();
    }

    check() {
      if (this.#source && Date.now() - this.#heardAt > SILENCE_MS) this.renew();
    }

    // After a refusal (503, a proxy's answer, a session that is over) the browser gives up; we do not.
    #failed(source) {
      this.#become("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      if (this.#failures % REFUSALS === 0) this.refused();
      this.#retry = setTimeout(() => this.open(), pause(this.#failures++));
    }

    #become(state) {
      this.state = state;
      this.tell(state);
    }
  }

  // A tab for itself: no connection is held for a page that nobody sees.
  class Alone {
    constructor({ address, after, hear, tell, refused }) {
      let last = after;
      const event = (type, id, data) => {
        last = id || last;
        if (type !== "beat") hear(type, data);
      };
      this.line = new Line(address, () => last, { event, tell, refused });
      if (!document.hidden) this.line.open();
    }

    seen() { if (document.hidden) this.line.close(); else this.line.renew(); }
    check() { this.line.check(); }
    renew() { if (!document.hidden) this.line.renew(); }
    stop() { this.line.close(); }
  }

  // Every message tells how the connection is and which change was the last, so a tab that joins late, or slept,
  // knows that it has missed something.
  class Shared {
    #line = null;
    #ended = new AbortController();
    #release = () => {};
    #heardAt = Date.now();
    #askedAt = 0;

    constructor({ address, after, group, hear, missed, tell, refused }) {
      Object.assign(this, { after, hear, missed, tell, refused, last: after, name: `crcr-live-1 ${group}` });
      this.address = new URL(address, location.href);
      this.address.searchParams.delete("upstream");
      this.channel = new BroadcastChannel(this.name);
      this.channel.addEventListener("message", ({ data }) => this.#receive(data));
      this.#queue({ signal: this.#ended.signal });
      this.channel.postMessage({ type: "ask" });
    }

    seen() { if (!document.hidden) this.check(); }
    renew() { this.#line?.renew(); }

    check() {
      if (this.#line) { this.#line.check(); return; }
      if (document.hidden || Date.now() - this.#heardAt < SILENCE_MS) return;
      // The tab that listens is asked; one that does not even answer hangs, and its place is taken.
      if (!this.#askedAt) {
        this.#askedAt = Date.now();
        this.tell("lost");
        this.channel.postMessage({ type: "ask" });
      } else if (Date.now() - this.#askedAt >= PATIENCE_MS) {
        this.#heardAt = Date.now();
        this.#askedAt = 0;
        this.#queue({ steal: true });
      }
    }

    stop() {
      this.#ended.abort();
      this.#resign();
      this.channel.close();
    }

    #queue(how) {
      navigator.locks.request(this.name, how, () => this.#lead()).catch((problem) => {
        this.#resign();
        if (this.#ended.signal.aborted) return;
        if (problem.name === "AbortError") this.#queue({ signal: this.#ended.signal });
        else this.#lead();
      });
    }

    #lead() {
      if (this.#ended.signal.aborted) return null;
      const event = (type, id, data) => {
        this.last = id || this.last;
        this.#post(type, data);
        if (type !== "beat") this.hear(type, data);
      };
      const tell = (state) => { this.tell(state); this.#post("state"); };
      this.#line?.close();
      this.#line = new Line(this.address, () => this.last, { event, tell, refused: this.refused });
      this.#line.open();
      return new Promise((resolve) => { this.#release = resolve; });
    }

    #resign() {
      this.#line?.close();
      this.#line = null;
      this.#release();
    }

    #post(type, data) {
      this.channel.postMessage({ type, data, id: this.last, state: this.#line.state });
    }

    #receive({ type, state, id, data }) {
      if (type === "ask") {
        if (this.#line) { this.#line.check(); this.#post("state"); }
        return;
      }
      if (this.#line) return;
      this.#heardAt = Date.now();
      this.#askedAt = 0;
      this.tell(state);
      if (type === "change" || type === "reset" || type === "health") { this.last = id; this.hear(type, data); }
      else if (Number(id) > Number(this.last)) { this.last = id; this.missed(); }
    }
  }

  function follow(wish) {
    const shares = navigator.locks && globalThis.BroadcastChannel;
    const stream = shares ? new Shared(wish) : new Alone(wish);
    const checking = setInterval(() => stream.check(), CHECK_MS);
    const ends = new AbortController();
    const stop = () => { clearInterval(checking); ends.abort(); stream.stop(); };
    document.addEventListener("visibilitychange", () => stream.seen(), ends);
    // A relay on the same machine is there all the same, so an offline browser tries on.
    for (const name of ["online", "offline"]) addEventListener(name, () => stream.renew(), ends);
    addEventListener("pagehide", stop, ends);
    return stop;
  }

  Object.assign(globalThis.crcr, { follow });
})();
