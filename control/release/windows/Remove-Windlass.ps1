<#
.SYNOPSIS
Stops and removes the service, its firewall rule and the pod network. Settings, logs and state stay.
.EXAMPLE
.\Remove-Windlass.ps1
#>
[CmdletBinding()]
param(
    # Name of the pods' HNS network.
    [string] $Name = 'cbr0'
)
Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
#Requires -RunAsAdministrator

& "$PSScriptRoot\windlass.exe" service uninstall
if ($LASTEXITCODE -ne 0) { throw "windlass service uninstall ended with exit code $LASTEXITCODE" }
& "$PSScriptRoot\Remove-PodNetwork.ps1" -Name $Name
