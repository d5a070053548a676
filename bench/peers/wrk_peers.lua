-- POSTs one fixed body and judges every answer: its status, its length, its first values.
-- Environment: BODY (file), HEADERS ("K: V" lines), LENGTH (of a right answer; 0: any, the answer
-- is JSON), RIGHT (file of float32, the first values of the answer's row), TOLERANCE.
-- A row of ROW_BYTES stands at the end of an answer that is not JSON.
local ffi = require("ffi")

local function read(name)
  local f = assert(io.open(os.getenv(name), "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

wrk.method = "POST"
wrk.body = read("BODY")
for line in os.getenv("HEADERS"):gmatch("[^\n]+") do
  local key, value = line:match("^([^:]+):%s*(.*)$")
  wrk.headers[key] = value
end

local right_text = read("RIGHT")
local values = #right_text / 4
local want = ffi.cast("const float *", right_text)
local got = ffi.new("float[?]", values)
local length = tonumber(os.getenv("LENGTH"))
local from = length - tonumber(os.getenv("ROW_BYTES")) + 1
local tolerance = tonumber(os.getenv("TOLERANCE"))
local known = {}

local function near(i, value)
  return value and math.abs(value - want[i]) <= tolerance
end

local function judge_values(text)
  ffi.copy(got, text, #right_text)
  for i = 0, values - 1 do
    if not near(i, got[i]) then return false end
  end
  return true
end

local function judge_json(text)
  local i = 0
  for number in text:gmatch("-?%d[%d.eE+-]*") do
    if not near(i, tonumber(number)) then return false end
    i = i + 1
    if i == values then return true end
  end
  return false
end

local function is_right(body)
  if length == 0 then return judge_json(body:sub(1, 32 * values)) end
  if #body ~= length then return false end
  local first = body:sub(from, from + #right_text - 1)
  if known[first] then return true end
  local right = judge_values(first)
  if right then known[first] = true end
  return right
end

local threads = {}
function setup(thread) table.insert(threads, thread) end

right, wrong, other = 0, 0, 0
function response(status, headers, body)
  if status ~= 200 then
    other = other + 1
  elseif is_right(body) then
    right = right + 1
  else
    wrong = wrong + 1
  end
end

function done(summary, latency, requests)
  local sums = { right = 0, wrong = 0, other = 0 }
  for _, thread in ipairs(threads) do
    for key in pairs(sums) do sums[key] = sums[key] + thread:get(key) end
  end
  local e = summary.errors
  io.write(string.format(
    'JSON {"right":%d,"wrong":%d,"other":%d,"broken":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"max_us":%d}\n',
    sums.right, sums.wrong, sums.other, e.connect + e.read + e.write + e.timeout,
    summary.duration, latency:percentile(50), latency:percentile(99), latency.max))
end
