// Asks the appliance that served this page, and nobody else.

const TOKEN_KEY = "windlass-token";
const PATIENCE_MS = 8000;

/** The appliance wants a token, or another one. */
export class TokenNeeded extends Error {}

/** The appliance answers, but not what was asked for. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** No answer, or none that can be read. */
export class Lost extends Error {}

export class Api {
  #token = sessionStorage.getItem(TOKEN_KEY);

  get hasToken() {
    return this.#token !== null;
  }

  /** Kept until this tab is closed. */
  setToken(token) {
    this.#token = token;
    sessionStorage.setItem(TOKEN_KEY, token);
  }

  forgetToken() {
    this.#token = null;
    sessionStorage.removeItem(TOKEN_KEY);
  }

  /** The JSON at a path below /api/v1/. */
  async get(path) {
    const headers = this.hasToken ? { Authorization: `Bearer ${this.#token}` } : {};
    let response;
    let body;
    try {
      const signal = AbortSignal.timeout(PATIENCE_MS);
      response = await fetch(`api/v1/${path}`, { headers, signal, cache: "no-store" });
      body = await response.json();
    } catch (error) {
      throw new Lost(error.message);
    }
    if (response.status === 401) throw new TokenNeeded(body.error);
    if (!response.ok) throw new Refused(response.status, body.error ?? response.statusText);
    return body;
  }
}
