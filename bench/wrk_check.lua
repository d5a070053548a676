-- POSTs one fixed body and compares every answer, whole, with the expected one.
-- Environment: BODY (file), EXPECTED (file), HEADERS ("K: V" lines), SKIP (bytes of an answer
-- that are not compared, as a JSON head whose length is fixed).
local function read(name)
  local f = assert(io.open(os.getenv(name), "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

wrk.method = "POST"
wrk.body = read("BODY")
for line in (os.getenv("HEADERS") or ""):gmatch("[^\n]+") do
  local key, value = line:match("^([^:]+):%s*(.*)$")
  if key then wrk.headers[key] = value end
end

local expected = read("EXPECTED")
local threads = {}
function setup(thread) table.insert(threads, thread) end

right, wrong, refused, other = 0, 0, 0, 0
function response(status, headers, body)
  if status == 200 then
    if body == expected then right = right + 1 else wrong = wrong + 1 end
  elseif status == 503 then
    refused = refused + 1
  else
    other = other + 1
  end
end

function done(summary, latency, requests)
  local sums = { right = 0, wrong = 0, refused = 0, other = 0 }
  for _, thread in ipairs(threads) do
    for key in pairs(sums) do sums[key] = sums[key] + thread:get(key) end
  end
  local e = summary.errors
  io.write(string.format(
    'JSON {"right":%d,"wrong":%d,"refused":%d,"other":%d,"broken":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"max_us":%d}\n',
    sums.right, sums.wrong, sums.refused, sums.other, e.connect + e.read + e.write + e.timeout,
    summary.duration, latency:percentile(50), latency:percentile(99), latency.max))
end
