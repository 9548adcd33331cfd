<#
.SYNOPSIS
Makes the network of this node's pods: an HNS network of the type L2Bridge, as flannel's host-gw backend lays it out.
.DESCRIPTION
The network's subnet is the node's podCIDR and its gateway the podCIDR's .1. A host endpoint at .2 is the pods' next hop, as
the CNI plugin win-bridge expects it. The management, endpoint and Wintun interfaces forward. Run again, it only makes what
is missing. Making the network takes the node's network card into a virtual switch: connections to the node pause for some
seconds.
.EXAMPLE
.\New-PodNetwork.ps1 -PodCidr 10.244.3.0/24
#>
[CmdletBinding()]
param(
    # The node's podCIDR: kubectl get node NAME -o jsonpath='{.spec.podCIDR}'
    [Parameter(Mandatory)] [ValidatePattern('^\d+\.\d+\.\d+\.\d+/\d+$')] [string] $PodCidr,
    # Name of the network, and "name" in the CNI configuration.
    [string] $Name = 'cbr0',
    # The network card with the node's address; HNS chooses unless given.
    [string] $Adapter,
    # How long to wait for an interface to appear.
    [int] $TimeoutSeconds = 60
)
Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
#Requires -RunAsAdministrator
Import-Module "$PSScriptRoot\hns.psm1" -Force

# The address that lies so far into the podCIDR.
function Get-PodAddress([int] $Offset) {
    $bytes = ([System.Net.IPAddress] $PodCidr.Split('/')[0]).GetAddressBytes()
    $bytes[3] += $Offset
    ([System.Net.IPAddress] $bytes).ToString()
}

function Wait-Interface([string] $Alias) {
    $deadline = (Get-Date).AddSeconds($TimeoutSeconds)
    while (-not (Get-NetIPInterface -InterfaceAlias $Alias -AddressFamily IPv4 -ErrorAction SilentlyContinue)) {
        if ((Get-Date) -gt $deadline) { throw "the interface '$Alias' has not appeared in $TimeoutSeconds s" }
        Write-Verbose "waiting for the interface '$Alias'"
        Start-Sleep -Milliseconds 500
    }
}

$network = Find-Hns networks $Name
if ($network -and $network.Type -ne 'L2Bridge') {
    throw "the HNS network '$Name' is of the type $($network.Type): remove it first, or give another -Name"
}
if ($network -and $network.Subnets[0].AddressPrefix -ne $PodCidr) {
    throw "the HNS network '$Name' has the subnet $($network.Subnets[0].AddressPrefix), not ${PodCidr}: run Remove-Windlass.ps1 -PodNetworkOnly first"
}
if (-not $network) {
    $request = @{
        Name = $Name
        Type = 'L2Bridge'
        Subnets = @(@{ AddressPrefix = $PodCidr; GatewayAddress = Get-PodAddress 1 })
    }
    if ($Adapter) { $request.NetworkAdapterName = $Adapter }
    $network = Invoke-Hns POST '/networks/' $request
}

$endpoint = Find-Hns endpoints "${Name}_ep"
if (-not $endpoint) {
    $endpoint = Invoke-Hns POST '/endpoints/' @{
        Name = "${Name}_ep"
        VirtualNetwork = $network.ID
        IPAddress = Get-PodAddress 2
        GatewayAddress = '0.0.0.0'
    }
    Invoke-Hns POST "/endpoints/$($endpoint.ID)/attach" @{ SystemType = 'Host'; CompartmentId = 1 } | Out-Null
}

Wait-Interface "vEthernet (${Name}_ep)"
$forwarding = @("vEthernet (${Name}_ep)")
$forwarding += Get-NetIPAddress -IPAddress $network.ManagementIP -ErrorAction SilentlyContinue | ForEach-Object InterfaceAlias
# windlass makes its own forward when it runs.
foreach ($alias in $forwarding) {
    Set-NetIPInterface -InterfaceAlias $alias -AddressFamily IPv4 -Forwarding Enabled
}
Write-Output "pod network '$Name': $PodCidr, next hop $(Get-PodAddress 2), forwarding on: $($forwarding -join ', ')"
