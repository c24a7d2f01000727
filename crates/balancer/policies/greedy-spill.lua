-- Greedy Spill (Listing 1): a rank with load sends half of it to the next rank if that one
-- is idle. For many clients that create files in one directory.

function metaload()
    return IWR
end

function mdsload(i)
    return MDSs[i]["all"]
end

function when()
    return whoami < #MDSs and MDSs[whoami]["load"] > .01 and MDSs[whoami + 1]["load"] < .01
end

function where()
    targets[whoami + 1] = allmetaload / 2
end

howmuch = { "half" }
