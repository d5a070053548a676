-- When the first queued task of a model may run. ARGV: again, model. Answers the time, 0 for one that
-- may run at once, '' for none.
local model = ARGV[2]
local first = redis.call('ZRANGE', BASE .. 'later:' .. model, 0, 0, 'WITHSCORES')[2]
for _, which in ipairs({'r', 'q'}) do
  local key = stream_key(which, model)
  if redis.call('EXISTS', key) == 1 then
    local last
    local group = redis.call('XINFO', 'GROUPS', key)[1]
    for i = 1, #group, 2 do
      if group[i] == 'last-delivered-id' then last = group[i + 1] end
    end
    if redis.call('XRANGE', key, '(' .. last, '+', 'COUNT', 1)[1] then return '0' end
  end
end
return first or ''
