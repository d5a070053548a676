-- The number of queued tasks of a model, those among them that are tried again later. ARGV: again,
-- model. The queues are asked, since somebody may have removed the counts, which are taken at their
-- word only where there are many origins.
local model = ARGV[2]
local ASKED_MOST = 8
local n = call('ZCARD', BASE .. 'later:' .. model) + call('ZCARD', old_key(model))
local origins = call('ZRANGE', origins_key(model), 0, ASKED_MOST)
for at = 1, math.min(#origins, ASKED_MOST) do
  n = n + call('ZCARD', line_key(model, origins[at]))
end
if #origins > ASKED_MOST then n = math.max(n + 1, counted('0:' .. model)) end
return n
