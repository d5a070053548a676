-- POSTs raw rows, a row for each thread, and judges every answer: its length, its JSON head, and
-- every value of the row within a tolerance. An answer that was right once is right again.
-- Environment: TALLY (wrk_tally.lua), ROWS and RIGHT (files of ROW_BYTES and RIGHT_BYTES a row,
-- RIGHT in float32), TOLERANCE, HEAD (the JSON before an answer's row), HEADERS.
local ffi = require("ffi")
dofile(os.getenv("TALLY"))

local function row_of(name, number, size)
  local f = assert(io.open(os.getenv(name), "rb"))
  f:seek("set", number * size)
  local text = f:read(size)
  f:close()
  return text
end

local head, right_bytes, right_text, want, got, tolerance
local known = {}
function init(args)
  wrk.method = "POST"
  wrk.body = row_of("ROWS", number, tonumber(os.getenv("ROW_BYTES")))
  set_headers()
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

tally(function(body)
  if not known[body] then
    if not judge(body) then return false end
    known[body] = true
  end
  return true
end)
