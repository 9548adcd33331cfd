<#
.SYNOPSIS
Stops and removes the service, its firewall rule and the pod network. Settings, logs and state stay.
.EXAMPLE
.\Remove-Windlass.ps1
.EXAMPLE
.\Remove-Windlass.ps1 -PodNetworkOnly
#>
[CmdletBinding()]
param(
    # Name of the pods' HNS network. Pods that are still there lose it.
    [string] $Name = 'cbr0',
    # Leaves the service: only removes what New-PodNetwork.ps1 has made.
    [switch] $PodNetworkOnly
)
Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
#Requires -RunAsAdministrator
Import-Module "$PSScriptRoot\hns.psm1" -Force

if (-not $PodNetworkOnly) {
    & "$PSScriptRoot\windlass.exe" service uninstall
    if ($LASTEXITCODE -ne 0) { throw "windlass service uninstall ended with exit code $LASTEXITCODE" }
}

$endpoint = Find-Hns endpoints "${Name}_ep"
if ($endpoint) { Invoke-Hns DELETE "/endpoints/$($endpoint.ID)" | Out-Null }
$network = Find-Hns networks $Name
if ($network -and $network.Type -ne 'L2Bridge') { throw "the HNS network '$Name' is not of the type L2Bridge: not ours" }
if ($network) { Invoke-Hns DELETE "/networks/$($network.ID)" | Out-Null }
Write-Output "pod network '$Name': removed"
