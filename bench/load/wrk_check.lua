-- POSTs one fixed body and compares every answer, whole, with the expected one.
-- Environment: TALLY (wrk_tally.lua), BODY (file), EXPECTED (file), HEADERS.
dofile(os.getenv("TALLY"))

wrk.method = "POST"
wrk.body = read_file("BODY")
set_headers()

local expected = read_file("EXPECTED")
tally(function(body) return body == expected end)
