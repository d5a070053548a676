-- Calls the body for each of KEYS, whose arguments stand in ARGV behind their number. What one call
-- fails with takes the place of its reply, and fails no other one.
local replies, at = {}, 2
for n, key in ipairs(KEYS) do
  COUNTS, BASE = key, string.sub(key, 1, -2)
  begin()
  local given = {ARGV[1]}
  for place = at + 1, at + ARGV[at] do given[#given + 1] = ARGV[place] end
  at = at + 1 + ARGV[at]
  local went_well, found = pcall(body, given)
  local written, fault = pcall(write)
  if went_well and not written then found = fault end
  if not (went_well and written) and type(found) ~= 'table' then
    found = {err = 'ERR ' .. tostring(found)}
  end
  replies[n] = found
end
return replies
