-- The load for wrk: `sum(55, 21)` over HTTP with keep-alive, and one line of JSON at the end.
--
--   wrk -t1 -c32 -d2s -s bench/wrk/load.lua http://127.0.0.1:8545/ -- batch=100
--
-- batch=N     each request is a batch of N calls, with ids from 1
-- depth=N     N requests are pipelined on each connection

local function call(id)
   return '{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":' .. id .. "}"
end

local function body_of(batch)
   if batch == 0 then
      return call(1)
   end
   local calls = {}
   for id = 1, batch do
      calls[id] = call(id)
   end
   return "[" .. table.concat(calls, ",") .. "]"
end

local function request_of(body)
   return "POST / HTTP/1.1\r\n"
      .. "Host: 127.0.0.1\r\n"
      .. "Content-Type: application/json\r\n"
      .. "Content-Length: " .. #body .. "\r\n\r\n"
      .. body
end

-- Replacing `wrk.format` rather than defining `request` keeps the request fixed: wrk asks for it
-- once, and calls no Lua while the load runs.
function init(arguments)
   local options = { batch = "0", depth = "1" }
   for _, argument in ipairs(arguments) do
      local name, value = argument:match("^(%a+)=(.+)$")
      assert(name, "not an option: " .. argument)
      options[name] = value
   end
   local pipeline = request_of(body_of(tonumber(options.batch))):rep(tonumber(options.depth))
   wrk.format = function()
      return pipeline
   end
end

-- Latencies are in microseconds, the duration in seconds.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"duration":%.6f,"status_errors":%d,"socket_errors":%d,'
         .. '"p50":%d,"p99":%d,"p999":%d}\n',
      summary.requests, summary.duration / 1e6, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9)
   ))
end
