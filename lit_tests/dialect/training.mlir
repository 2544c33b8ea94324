// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s

// CHECK-LABEL: func.func @held
func.func @held(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  // CHECK: "pcp.stop_gradient"(%arg0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %0 = "pcp.stop_gradient"(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
