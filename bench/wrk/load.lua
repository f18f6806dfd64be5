-- The load for wrk: `sum(55, 21)` over HTTP with keep-alive, and one line of JSON at the end.
--
--   wrk -t1 -c32 -d2s -s bench/wrk/load.lua http://127.0.0.1:8545/ -- batch=100
--
-- batch=N     each request is a batch of N calls, with ids from 1
-- depth=N     N requests are pipelined on each connection
-- expect=FILE each reply's body is compared with the bytes of FILE. wrk then copies every reply
--             into Lua, which slows it, so timed runs go without: they count statuses and bytes.

local threads = {}

local function read_file(path)
   local file = assert(io.open(path, "rb"))
   local text = file:read("*a")
   file:close()
   return text
end

local function options_of(arguments)
   local options = { batch = "0", depth = "1" }
   for _, argument in ipairs(arguments) do
      local name, value = argument:match("^(%a+)=(.+)$")
      assert(name, "not an option: " .. argument)
      options[name] = value
   end
   return options
end

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

-- Globals of a thread are what `done` can read. They are counted in the thread's own interpreter.
local function check_replies(expected)
   response = function(_, _, body)
      checked = checked + 1
      if body ~= expected then
         wrong = wrong + 1
      end
   end
end

function setup(thread)
   threads[#threads + 1] = thread
end

-- Replacing `wrk.format` rather than defining `request` keeps the request fixed: wrk asks for it
-- once, and calls no Lua while the load runs.
function init(arguments)
   local options = options_of(arguments)
   local request = request_of(body_of(tonumber(options.batch)))
   request_bytes, checked, wrong = #request, 0, 0
   local pipeline = request:rep(tonumber(options.depth))
   wrk.format = function()
      return pipeline
   end
   if options.expect then
      check_replies(read_file(options.expect))
   end
end

local function total(name)
   local sum = 0
   for _, thread in ipairs(threads) do
      sum = sum + thread:get(name)
   end
   return sum
end

-- Latencies are in microseconds, the duration in seconds.
function done(summary, latency)
   local errors = summary.errors
   local socket_errors = errors.connect + errors.read + errors.write + errors.timeout
   io.write(string.format(
      '{"requests":%d,"duration":%.6f,"bytes":%d,"request_bytes":%d,"checked":%d,"wrong":%d,'
         .. '"status_errors":%d,"socket_errors":%d,"p50":%d,"p99":%d,"p999":%d,"mean":%.3f}\n',
      summary.requests, summary.duration / 1e6, summary.bytes, threads[1]:get("request_bytes"),
      total("checked"), total("wrong"), errors.status, socket_errors,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.mean
   ))
end
