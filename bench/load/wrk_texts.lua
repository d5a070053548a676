-- POSTs JSON bodies in turns and judges every answer by the vector that ends it: its cosine to the
-- right one. A body's `id` is its number, from 0 on, and comes back in the answer.
-- Environment: TALLY (wrk_tally.lua), BODIES (file, a body a line), RIGHT (file, vectors of length
-- one of WIDTH float32), COSINE (the least that is right), HEADERS.
local ffi = require("ffi")
dofile(os.getenv("TALLY"))

local width, least, want, got, right_text
function init(args)
  wrk.method = "POST"
  set_headers()
  local all = {}
  for line in read_file("BODIES"):gmatch("[^\n]+") do all[#all + 1] = line end
  bodies = {}
  for i = 1, #all do bodies[i] = all[(i + number * 97) % #all + 1] end
  width = tonumber(os.getenv("WIDTH"))
  least = tonumber(os.getenv("COSINE"))
  right_text = read_file("RIGHT")
  want = ffi.cast("const float *", right_text)
  got = ffi.new("float[?]", width)
end

tally(function(body)
  local row = tonumber(body:match('"id":"(%d+)"'))
  if not row or #body < width * 4 then return false end
  ffi.copy(got, body:sub(-width * 4), width * 4)
  local product, square = 0, 0
  local first = row * width
  for i = 0, width - 1 do
    product = product + got[i] * want[first + i]
    square = square + got[i] * got[i]
  end
  return product / math.sqrt(square) > least
end)
