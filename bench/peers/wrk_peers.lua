-- POSTs one fixed body and judges every answer: its status, its length, its first values.
-- Environment: TALLY (wrk_tally.lua), BODY (file), HEADERS, LENGTH (of a right answer; 0: any, the
-- answer is JSON), RIGHT (file of float32, the first values of the answer's row), TOLERANCE.
-- A row of ROW_BYTES stands at the end of an answer that is not JSON.
local ffi = require("ffi")
dofile(os.getenv("TALLY"))

wrk.method = "POST"
wrk.body = read_file("BODY")
set_headers()

local right_text = read_file("RIGHT")
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

tally(is_right)
