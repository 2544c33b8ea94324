// RUN: pcp-opt %s --pcp-sink-products --allow-unregistered-dialect | filecheck %s

// The product's reshape follows it; the sum has a kernel of its own.
// CHECK-LABEL: @epilogue
// CHECK: %[[R:.*]] = "flow.dispatch.region"()
// CHECK-NEXT: %[[S:.*]] = stablehlo.reduce(%arg2
// CHECK-NEXT: "flow.return"(%[[S]])
// CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim %[[R]]
// CHECK-NEXT: %[[P:.*]] = stablehlo.dot_general %arg0, %arg1
// CHECK-NEXT: %[[Q:.*]] = stablehlo.reshape %[[P]]
// CHECK-NEXT: stablehlo.add %[[Q]], %[[B]]
func.func @epilogue(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>, %z: tensor<2x4x5xf32>) -> tensor<2x4x6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %q = stablehlo.reshape %p : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
  %s = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x4x5xf32>, tensor<f32>) -> tensor<2x4xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x6xf32>
  %r = stablehlo.add %q, %b : tensor<2x4x6xf32>
  return %r : tensor<2x4x6xf32>
}

// Not past a call, which may do anything; a sum that nothing is added to stays as it is.
// CHECK-LABEL: @effects
// CHECK: stablehlo.dot_general
// CHECK-NEXT: call @other
// CHECK-NEXT: stablehlo.reduce
// CHECK-NOT: flow.dispatch.region
func.func @effects(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) -> (tensor<8x6xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  call @other() : () -> ()
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
  return %p, %s : tensor<8x6xf32>, tensor<8xf32>
}
func.func private @other()
