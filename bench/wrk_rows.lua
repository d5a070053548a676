-- POSTs raw rows, a row for each thread, and judges every answer: its length, its JSON head, and
-- every value of the row within a tolerance. An answer that was right once is right again.
-- Environment: ROWS and RIGHT (files of ROW_BYTES and RIGHT_BYTES a row, RIGHT in float32),
-- TOLERANCE, HEAD (the JSON before an answer's row), HEADERS ("K: V" lines).
local ffi = require("ffi")

local function row_of(name, number, size)
  local f = assert(io.open(os.getenv(name), "rb"))
  f:seek("set", number * size)
  local text = f:read(size)
  f:close()
  return text
end

local threads = {}
function setup(thread)
  thread:set("number", #threads)
  table.insert(threads, thread)
end

local head, right_bytes, right_text, want, got, tolerance
local known = {}
function init(args)
  wrk.method = "POST"
  wrk.body = row_of("ROWS", number, tonumber(os.getenv("ROW_BYTES")))
  for line in os.getenv("HEADERS"):gmatch("[^\n]+") do
    local key, value = line:match("^([^:]+):%s*(.*)$")
    wrk.headers[key] = value
  end
  head = os.getenv("HEAD")
  tolerance = tonumber(os.getenv("TOLERANCE"))
  right_bytes = tonumber(os.getenv("RIGHT_BYTES"))
  right_text = row_of("RIGHT", number, right_bytes)
  want = ffi.cast("const float *", right_text)
  got = ffi.new("float[?]", right_bytes / 4)
end

local function judge(body)
  if #body ~= #head + right_bytes or body:sub(1, #head) ~= head then return false end
  ffi.copy(got, body:sub(#head + 1), right_bytes)
  for i = 0, right_bytes / 4 - 1 do
    if not (math.abs(got[i] - want[i]) <= tolerance) then return false end
  end
  return true
end

right, wrong, refused, other = 0, 0, 0, 0
function response(status, headers, body)
  if status == 200 then
    if known[body] then
      right = right + 1
    elseif judge(body) then
      known[body] = true
      right = right + 1
    else
      wrong = wrong + 1
    end
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
