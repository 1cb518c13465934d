// npm `@modelcontextprotocol/sdk` 1.x: what most MCP hosts in JavaScript have.
import { follow, headers, load, target } from "./lines.mjs";

const { Client } = load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = load("@modelcontextprotocol/sdk/client/streamableHttp.js");

const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers } })
  : new StdioClientTransport({ command: target.command, args: target.args, env: target.env });
let protocol;
const keep = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (version) => {
  protocol = version;
  keep?.(version);
};
const client = new Client({ name: "interop", version: "1" });
await client.connect(transport);
await follow(
  client,
  () => ({ protocol, server: client.getServerVersion().name }),
  (params, options) => client.callTool(params, undefined, options),
);
