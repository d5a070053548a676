-- When the first queued task of a model may run. ARGV: again, model. Answers the time, 0 for one that
-- may run at once, '' for none.
local model = ARGV[2]
if call('ZCARD', origins_key(model)) > 0 or call('ZCARD', old_key(model)) > 0 then return '0' end
return call('ZRANGE', BASE .. 'later:' .. model, 0, 0, 'WITHSCORES')[2] or ''
