-- The number of queued tasks of a model, those among them that are tried again later. ARGV: again,
-- model. It asks the queues and not the counts, which somebody may have removed.
local model = ARGV[2]
return call('ZCARD', turns_key(model)) + call('ZCARD', BASE .. 'later:' .. model)
