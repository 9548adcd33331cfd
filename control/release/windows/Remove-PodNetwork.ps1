<#
.SYNOPSIS
Removes what New-PodNetwork.ps1 has made. Pods that are still there lose their network.
.EXAMPLE
.\Remove-PodNetwork.ps1
#>
[CmdletBinding()]
param(
    # Name of the network.
    [string] $Name = 'cbr0'
)
Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
#Requires -RunAsAdministrator
Import-Module "$PSScriptRoot\hns.psm1" -Force

$endpoint = Find-Hns endpoints "${Name}_ep"
if ($endpoint) { Invoke-Hns DELETE "/endpoints/$($endpoint.ID)" | Out-Null }
$network = Find-Hns networks $Name
if ($network -and $network.Type -ne 'L2Bridge') { throw "the HNS network '$Name' is not of the type L2Bridge: not ours" }
if ($network) { Invoke-Hns DELETE "/networks/$($network.ID)" | Out-Null }
Write-Output "pod network '$Name': removed"
