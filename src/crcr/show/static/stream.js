// The change events as one stream for all tabs of a browser: a browser opens only six connections to a server, and a
// stream in each tab would use them up. The tab that holds a lock connects and passes the events on; when it closes, the
// next tab in the queue continues from the last change. Where a browser cannot share (no locks without HTTPS), each tab
// connects for itself while it is visible.
//
// `crcr.follow({ address, after, group, onChange, onMissed, onState, onRefused })` starts it and returns a function that
// stops it. `onChange` gets every change of every upstream with its id, `onMissed` is called with the last id when some may
// have been missed, `onState` gets "on" or "lost", and `onRefused` is called when the relay refuses the stream. Only tabs of
// the same `group`, whose readers may see the same, share a stream.
"use strict";

(() => {
  const { pause } = globalThis.crcr;
  const REFUSALS = 5;
  const CHECK_MS = 5000;
  // The relay sends an event every 15 seconds. Only silence shows that a connection is dead or its server hangs.
  const SILENCE_MS = 40000;
  const PATIENCE_MS = 10000;

  // One connection that reconnects when it is lost. `position` returns the change to continue after.
  class Connection {
    #source = null;
    #retry = 0;
    #failures = 0;
    #receivedAt = 0;

    constructor(address, position, { event, onState, onRefused }) {
      Object.assign(this, { address, position, event, onState, onRefused, state: "lost" });
    }

    open() {
      this.close();
      this.#receivedAt = Date.now();
      const address = new URL(this.address, location.href);
      if (this.position()) address.searchParams.set("after", this.position());
      const source = new EventSource(address);
      this.#source = source;
      const receive = ({ type, lastEventId, data }) => {
        if (source !== this.#source) return;
        this.#receivedAt = Date.now();
        this.event(type, lastEventId, data);
      };
      for (const type of ["change", "reset", "beat", "health"]) source.addEventListener(type, receive);
      source.addEventListener("open", () => {
        if (source !== this.#source) return;
        this.#receivedAt = Date.now();
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

    // Reconnects, because a connection's state is unknown after a change of the network; no event is lost.
    renew() {
      this.#become("lost");
      this.open();
    }

    check() {
      if (this.#source && Date.now() - this.#receivedAt > SILENCE_MS) this.renew();
    }

    // After a refusal (503, a proxy's answer, an expired session) the browser stops reconnecting; this class continues.
    #failed(source) {
      this.#become("lost");
      if (source.readyState !== EventSource.CLOSED) return;
      if (this.#failures % REFUSALS === 0) this.onRefused();
      this.#retry = setTimeout(() => this.open(), pause(this.#failures++));
    }

    #become(state) {
      this.state = state;
      this.onState(state);
    }
  }

  // The stream of one tab: a hidden page holds no connection.
  class OwnStream {
    constructor({ address, after, onChange, onState, onRefused }) {
      let last = after;
      const event = (type, id, data) => {
        last = id || last;
        if (type !== "beat") onChange(type, data, last);
      };
      this.connection = new Connection(address, () => last, { event, onState, onRefused });
      if (!document.hidden) this.connection.open();
    }

    visibilityChanged() { if (document.hidden) this.connection.close(); else this.connection.renew(); }
    check() { this.connection.check(); }
    renew() { if (!document.hidden) this.connection.renew(); }
    stop() { this.connection.close(); }
  }

  // Every message has the state of the connection and the last change, so that a tab that joins late or was suspended
  // knows that it has missed something.
  class SharedStream {
    #connection = null;
    #ended = new AbortController();
    #release = () => {};
    #receivedAt = Date.now();
    #pingedAt = 0;

    constructor({ address, after, group, onChange, onMissed, onState, onRefused }) {
      Object.assign(this, { after, onChange, onMissed, onState, onRefused, last: after, name: `crcr-live-1 ${group}` });
      this.address = new URL(address, location.href);
      this.address.searchParams.delete("upstream");
      this.channel = new BroadcastChannel(this.name);
      this.channel.addEventListener("message", ({ data }) => this.#receive(data));
      this.#queue({ signal: this.#ended.signal });
      this.channel.postMessage({ type: "ask" });
    }

    visibilityChanged() { if (!document.hidden) this.check(); }
    renew() { this.#connection?.renew(); }

    check() {
      if (this.#connection) { this.#connection.check(); return; }
      if (document.hidden || Date.now() - this.#receivedAt < SILENCE_MS) return;
      // Ping the connected tab; if it does not answer, it hangs, and this tab takes its lock.
      if (!this.#pingedAt) {
        this.#pingedAt = Date.now();
        this.onState("lost");
        this.channel.postMessage({ type: "ask" });
      } else if (Date.now() - this.#pingedAt >= PATIENCE_MS) {
        this.#receivedAt = Date.now();
        this.#pingedAt = 0;
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
        if (type !== "beat") this.onChange(type, data, this.last);
      };
      const onState = (state) => { this.onState(state); this.#post("state"); };
      this.#connection?.close();
      this.#connection = new Connection(this.address, () => this.last, { event, onState, onRefused: this.onRefused });
      this.#connection.open();
      return new Promise((resolve) => { this.#release = resolve; });
    }

    #resign() {
      this.#connection?.close();
      this.#connection = null;
      this.#release();
    }

    #post(type, data) {
      this.channel.postMessage({ type, data, id: this.last, state: this.#connection.state });
    }

    #receive({ type, state, id, data }) {
      if (type === "ask") {
        if (this.#connection) { this.#connection.check(); this.#post("state"); }
        return;
      }
      if (this.#connection) return;
      this.#receivedAt = Date.now();
      this.#pingedAt = 0;
      this.onState(state);
      if (type === "change" || type === "reset" || type === "health") { this.last = id; this.onChange(type, data, id); }
      else if (Number(id) > Number(this.last)) { this.last = id; this.onMissed(id); }
    }
  }

  function follow(options) {
    const shares = navigator.locks && globalThis.BroadcastChannel;
    const stream = shares ? new SharedStream(options) : new OwnStream(options);
    const checking = setInterval(() => stream.check(), CHECK_MS);
    const ends = new AbortController();
    const stop = () => { clearInterval(checking); ends.abort(); stream.stop(); };
    document.addEventListener("visibilitychange", () => stream.visibilityChanged(), ends);
    // A relay on the same machine is reachable without a network, so an offline browser keeps trying.
    for (const name of ["online", "offline"]) addEventListener(name, () => stream.renew(), ends);
    addEventListener("pagehide", stop, ends);
    return stop;
  }

  Object.assign(globalThis.crcr, { follow });
})();
