
function mdsload(i)
    return MDSs[i]["all"]
end
