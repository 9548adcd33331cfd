# The Host Networking Service (HNS), asked by HNSCall of vmcompute.dll: the cmdlets that come with Windows only list and
# remove.
Set-StrictMode -Version Latest

Add-Type -Namespace Windlass -Name Hns -MemberDefinition @'
[DllImport("vmcompute.dll", ExactSpelling = true, PreserveSig = false)]
public static extern void HNSCall(
    [MarshalAs(UnmanagedType.LPWStr)] string method,
    [MarshalAs(UnmanagedType.LPWStr)] string path,
    [MarshalAs(UnmanagedType.LPWStr)] string request,
    [MarshalAs(UnmanagedType.LPWStr)] out string response);
'@

# Asks HNS and gives what it answers; fails with what it says.
function Invoke-Hns {
    param(
        [Parameter(Mandatory)] [ValidateSet('GET', 'POST', 'DELETE')] [string] $Method,
        [Parameter(Mandatory)] [string] $Path,
        [hashtable] $Request
    )
    $body = if ($Request) { ConvertTo-Json $Request -Depth 10 -Compress } else { '' }
    $response = ''
    [Windlass.Hns]::HNSCall($Method, $Path, $body, [ref] $response)
    $answer = ConvertFrom-Json $response
    if (-not $answer.Success) { throw "HNS: $Method ${Path}: $($answer.Error)" }
    if ($answer.PSObject.Properties.Name -contains 'Output') { $answer.Output }
}

# The network or endpoint of that name; nothing where there is none.
function Find-Hns {
    param(
        [Parameter(Mandatory)] [ValidateSet('networks', 'endpoints')] [string] $Kind,
        [Parameter(Mandatory)] [string] $Name
    )
    Invoke-Hns GET "/$Kind/" | Where-Object { $_.Name -eq $Name } | Select-Object -First 1
}

Export-ModuleMember -Function @('Invoke-Hns', 'Find-Hns')
