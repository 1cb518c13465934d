// npm `@modelcontextprotocol/client` 2.x: the stateless revision where the server has it, `initialize` elsewhere.
import { follow, headers, load, target } from "./lines.mjs";

const { Client, StreamableHTTPClientTransport } = load("@modelcontextprotocol/client");
const { StdioClientTransport } = load("@modelcontextprotocol/client/stdio");

const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url), { requestInit: { headers } })
  : new StdioClientTransport({ command: target.command, args: target.args, env: target.env });
const client = new Client({ name: "interop", version: "1" }, { versionNegotiation: { mode: "auto" } });
await client.connect(transport);
await follow(
  client,
  () => ({ protocol: client.getNegotiatedProtocolVersion(), server: client.getServerVersion().name }),
  (params, options) => client.callTool(params, options),
);
