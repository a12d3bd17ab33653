// The client of the API. It connects only to the appliance that served this page.

const TOKEN_KEY = "windlass-token";
const PATIENCE_MS = 8000;

/** The appliance requires a token, or rejects the one sent. */
export class TokenNeeded extends Error {}

/** The appliance responds with an error. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** No response, or an unreadable one. */
export class Lost extends Error {}

export class Api {
  #token = sessionStorage.getItem(TOKEN_KEY);

  get hasToken() {
    return this.#token !== null;
  }

  /** Stores the token until this tab is closed. */
  setToken(token) {
    this.#token = token;
    sessionStorage.setItem(TOKEN_KEY, token);
  }

  forgetToken() {
    this.#token = null;
    sessionStorage.removeItem(TOKEN_KEY);
  }

  /** Requests a path below /api/v1/ and returns the JSON. */
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
