// What the JavaScript programs share: the protocol of programs/lines.py, over an SDK's client.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The packages stand in .clients, not beside this file.
export const load = createRequire(`${process.env.STN_INTEROP_NPM}/`);
export const target = JSON.parse(process.env.STN_INTEROP_TARGET);
export const headers = { Authorization: `Bearer ${target.token}` };

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

function called(found) {
  return {
    is_error: Boolean(found.isError),
    structured: found.structuredContent ?? null,
    text: (found.content ?? []).map((part) => part.text ?? "").join(""),
  };
}

// Both SDKs have these methods; `callTool` differs in its arguments.
export async function follow(client, info, callTool) {
  const operations = {
    info: async () => info(),
    tools: async () =>
      (await client.listTools()).tools.map((tool) => ({
        name: tool.name,
        input: tool.inputSchema,
        output: tool.outputSchema ?? null,
      })),
    call: async (step, options) => called(await callTool({ name: step.tool, arguments: step.arguments }, options)),
    resources: async () => (await client.listResources()).resources.map((resource) => resource.uri),
    read: async (step) => (await client.readResource({ uri: step.uri })).contents[0].text,
  };
  const running = new Map();
  const one = async (step) => {
    const given = new AbortController();
    running.set(step.id, given);
    const onprogress = (progress) => say({ id: step.id, progress: progress.message ?? "" });
    try {
      say({ id: step.id, result: await operations[step.op](step, { signal: given.signal, onprogress }) });
    } catch (error) {
      say(given.signal.aborted ? { id: step.id, cancelled: true } : { id: step.id, failed: String(error) });
    }
  };
  const steps = [];
  for await (const line of createInterface({ input: process.stdin })) {
    const step = JSON.parse(line);
    if (step.op === "cancel") {
      running.get(step.call).abort("the user gave up");
      say({ id: step.id, result: null });
    } else {
      steps.push(one(step));
    }
  }
  await Promise.all(steps);
  await client.close();
}
