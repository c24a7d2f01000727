-- The balancer of CephFS (Table 4.1): a rank above the mean load sends its surplus to ranks
-- below the mean, largest surplus to largest gap, in the largest fragments first.

function metaload()
    return IRD + 2 * IWR + READDIR + 2 * FETCH + 4 * STORE
end

function mdsload(i)
    return 0.8 * MDSs[i]["auth"] + 0.2 * MDSs[i]["all"] + MDSs[i]["req"] + 10 * MDSs[i]["q"]
end

function when()
    return MDSs[whoami]["load"] > total / #MDSs
end

-- All ranks match the same lists; each uses its own rows.
function where()
    local mean = total / #MDSs
    local exporters, importers = {}, {}
    for i = 1, #MDSs do
        local surplus = MDSs[i]["load"] - mean
        if surplus > 0 then
            exporters[#exporters + 1] = { rank = i, left = surplus }
        else
            importers[#importers + 1] = { rank = i, left = -surplus }
        end
    end
    local function larger(a, b)
        return a.left > b.left or (a.left == b.left and a.rank < b.rank)
    end
    table.sort(exporters, larger)
    table.sort(importers, larger)
    local e, i = 1, 1
    while e <= #exporters and i <= #importers do
        local from, to = exporters[e], importers[i]
        local amount = min(from.left, to.left)
        if from.rank == whoami then
            targets[to.rank] = amount
        end
        from.left = from.left - amount
        to.left = to.left - amount
        if from.left <= 0 then
            e = e + 1
        else
            i = i + 1
        end
    end
end

howmuch = { "big_first" }
