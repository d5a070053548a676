-- What all wrk scripts here share: files and headers from the environment, and how answers are
-- counted and told. A script says, by `tally(is_right)`, which bodies of status 200 are right.
-- Environment: HEADERS ("K: V" lines). Each thread has its `number`, from 0 on. HEADS=differing
-- gives each request an X-Request-Id of its own, two orders of its headers in turns, and AGENT as
-- its user agent (heads.py); else all heads are equal to the byte. A script sends wrk.body again and
-- again, or gives `bodies`, which are sent in turns.
local threads = {}
bodies = nil

function read_file(name)
  local f = assert(io.open(os.getenv(name), "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

function set_headers()
  for line in (os.getenv("HEADERS") or ""):gmatch("[^\n]+") do
    local key, value = line:match("^([^:]+):%s*(.*)$")
    if key then wrk.headers[key] = value end
  end
end

function setup(thread)
  thread:set("number", #threads)
  table.insert(threads, thread)
end

-- The bytes before and behind the id of a request, in both orders: the id last, and the id second.
local function orders(body)
  wrk.headers["Content-Length"] = #body
  local line = "POST " .. wrk.path .. " HTTP/1.1\r\n"
  local names = {}
  for name in pairs(wrk.headers) do names[#names + 1] = name end
  table.sort(names)
  local fields, back = {}, {}
  for i, name in ipairs(names) do
    fields[i] = name .. ": " .. wrk.headers[name] .. "\r\n"
    back[#names + 1 - i] = fields[i]
  end
  local before = {
    line .. table.concat(fields) .. "X-Request-Id: ",
    line .. back[1] .. "X-Request-Id: ",
  }
  local behind = {
    "\r\n\r\n" .. body,
    "\r\n" .. table.concat(back, "", 2) .. "\r\n" .. body,
  }
  return before, behind
end

local sent = 0
local made

if os.getenv("HEADS") == "differing" then
  function request()
    if not made then
      wrk.headers["User-Agent"] = os.getenv("AGENT")
      wrk.headers["Accept"] = "*/*"
      made = {}
      for i, body in ipairs(bodies or { wrk.body }) do made[i] = { orders(body) } end
    end
    local turn = made[sent % #made + 1]
    sent = sent + 1
    local order = sent % 2 + 1
    return turn[1][order] .. string.format("%08x%024x", number, sent) .. turn[2][order]
  end
else
  function request()
    if not made then
      made = {}
      for i, body in ipairs(bodies or { wrk.body }) do made[i] = wrk.format(nil, nil, nil, body) end
    end
    sent = sent + 1
    return made[sent % #made + 1]
  end
end

right, wrong, refused, other = 0, 0, 0, 0
function tally(is_right)
  function response(status, headers, body)
    if status == 503 then
      refused = refused + 1
    elseif status ~= 200 then
      other = other + 1
    elseif is_right(body) then
      right = right + 1
    else
      wrong = wrong + 1
    end
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
