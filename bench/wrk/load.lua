-- The load for wrk: `sum(55, 21)` over HTTP with keep-alive, and one line of JSON at the end.
--
--   wrk -t1 -c32 -d2s -s bench/wrk/load.lua http://127.0.0.1:8545/

local body = '{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
local call = "POST / HTTP/1.1\r\n"
   .. "Host: 127.0.0.1\r\n"
   .. "Content-Type: application/json\r\n"
   .. "Content-Length: " .. #body .. "\r\n\r\n"
   .. body

-- Replacing `wrk.format` rather than defining `request` keeps the request fixed: wrk asks for it
-- once, and calls no Lua while the load runs.
function init()
   wrk.format = function()
      return call
   end
end

-- Latencies are in microseconds, the duration in seconds.
function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"duration":%.6f,"errors":%d,"p50":%d,"p99":%d,"p999":%d}\n',
      summary.requests, summary.duration / 1e6,
      errors.status + errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9)
   ))
end
