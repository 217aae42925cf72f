// A page that is opened as a file may not start a worker: there, the search runs in a hidden frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.deliver(this, data);
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.ready = new Promise((loaded) => (script.onload = loaded));
      script.onerror = (event) => this.onerror?.(event);
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.deliver(this.inside, data));
    }

    deliver(receiver, message) {
      const data = structuredClone(message); // as if it came from another thread
      setTimeout(() => receiver.onmessage?.({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
