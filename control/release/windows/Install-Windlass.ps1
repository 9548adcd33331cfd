<#
.SYNOPSIS
Makes the pod network, checks this node and installs and starts the service. Nothing outside of this folder is copied.
.EXAMPLE
.\Install-Windlass.ps1 -PodCidr 10.244.3.0/24 -Config .\windlass.yaml
#>
[CmdletBinding()]
param(
    # The node's podCIDR: kubectl get node NAME -o jsonpath='{.spec.podCIDR}'
    [Parameter(Mandatory)] [string] $PodCidr,
    # The settings of `windlass run`.
    [string] $Config = "$PSScriptRoot\windlass.yaml",
    # Name of the pods' HNS network, and "name" in the CNI configuration.
    [string] $Name = 'cbr0',
    # The network card with the node's address; HNS chooses unless given.
    [string] $Adapter
)
Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
#Requires -RunAsAdministrator

function Invoke-Windlass {
    & "$PSScriptRoot\windlass.exe" @args
    if ($LASTEXITCODE -ne 0) { throw "windlass $args ended with exit code $LASTEXITCODE" }
}

$network = @{ PodCidr = $PodCidr; Name = $Name }
if ($Adapter) { $network.Adapter = $Adapter }
& "$PSScriptRoot\New-PodNetwork.ps1" @network
Invoke-Windlass check --config $Config
Invoke-Windlass service install --config $Config
Invoke-Windlass service start
