-- Absorbs a burst without evictions, then limits the cache. The saved state says that the burst
-- is over.

function when()
    local size = servers[whoami]["cachesize"]
    if size > BURST then
        WRstate(1)
    end
    return size > ENTRIES and RDstate() == 1
end

function howmuch()
    servers[whoami]["cachesize"] = ENTRIES
end
