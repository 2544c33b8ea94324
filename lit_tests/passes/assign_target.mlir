// RUN: pcp-opt %s --pcp-assign-target=target=sm_90a --allow-unregistered-dialect | filecheck %s
// RUN: pcp-opt %s --pcp-assign-target=target=cpu:host --allow-unregistered-dialect | filecheck %s --check-prefix=CPU
// RUN: not pcp-opt %s --pcp-assign-target=target=sm_91 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not pcp-opt %s --pcp-assign-target 2>&1 | filecheck %s --check-prefix=MISSING

// CHECK: module attributes {hal.device.targets = [#hal.device.target<"cuda"
// CHECK-SAME: arch = "sm_90a"
// CHECK-SAME: pcp.target = "sm_90a"
// CPU: hal.device.targets = [#hal.device.alias<"local"> : !hal.device], pcp.target = "cpu:host"
// UNKNOWN: error: pcp-assign-target: unknown target 'sm_91'
// UNKNOWN-SAME: Did you mean 'sm_90'?
// MISSING: option 'target' is required
module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    return %x : tensor<4xf32>
  }
}
