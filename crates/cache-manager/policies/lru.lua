-- Evicts the least recently used entries above a limit.

function when()
    return servers[whoami]["cachesize"] > ENTRIES
end

function howmuch()
    servers[whoami]["cachesize"] = ENTRIES
end
