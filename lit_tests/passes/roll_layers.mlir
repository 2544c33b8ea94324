// RUN: pcp-opt %s --pcp-roll-layers=layers=3 | filecheck %s
// RUN: pcp-opt %s --pcp-roll-layers --cse --canonicalize | filecheck %s --check-prefix=FEW
// RUN: pcp-opt %s --pcp-roll-layers="layers=3 overhead=0.0001" | filecheck %s --check-prefix=FEW
// RUN: pcp-opt %s --pcp-roll-layers="func=skips layers=2" | filecheck %s --check-prefix=SKIPS
// RUN: not pcp-opt %s --pcp-roll-layers=layers=1 2>&1 | filecheck %s --check-prefix=ONE
// RUN: not pcp-opt %s --pcp-roll-layers=func=loss 2>&1 | filecheck %s --check-prefix=MISSING

// Three layers with a matrix of their own, a shared mask and a shared gain: the mask is
// made in front, the matrices are a stack, the gain stays what it is.

// CHECK-LABEL: func.func @main(
// CHECK: %[[MASK:.*]] = stablehlo.compare
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
// CHECK: %[[STACK:.*]] = stablehlo.concatenate %[[A]], {{.*}}, dim = 0 {{.*}} -> tensor<3x4x4xf32>
// CHECK: stablehlo.while(%[[I:.*]] = {{.*}}, %[[H:.*]] = %arg4)
// CHECK: stablehlo.constant dense<3> : tensor<i32>
// CHECK: do {
// CHECK: %[[ROW:.*]] = stablehlo.dynamic_slice %[[STACK]], %[[I]], {{.*}} sizes = [1, 4, 4]
// CHECK: %[[W:.*]] = stablehlo.reshape %[[ROW]]
// CHECK: stablehlo.dot_general %[[H]], %[[W]]
// CHECK: stablehlo.multiply {{.*}}, %arg3
// CHECK: stablehlo.select %[[MASK]]
// CHECK: stablehlo.return
// CHECK-NOT: stablehlo.dot_general
// CHECK-LABEL: func.func @skips

// FEW-LABEL: func.func @main(
// FEW-NOT: stablehlo.while
// FEW-LABEL: func.func @skips

// A value of an inner layer is read behind the last one.

// SKIPS-LABEL: func.func @skips
// SKIPS-NOT: stablehlo.while
// ONE: pcp-roll-layers: layers=1: a loop has two or more
// MISSING: pcp-roll-layers: the module has no function @loss

func.func @main(
    %w0: tensor<4x4xf32> {pcp.name = "w0", pcp.role = "param"},
    %w1: tensor<4x4xf32> {pcp.name = "w1", pcp.role = "param"},
    %w2: tensor<4x4xf32> {pcp.name = "w2", pcp.role = "param"},
    %gain: tensor<4x4xf32> {pcp.name = "gain", pcp.role = "param"},
    %x: tensor<4x4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<4x4xf32> {
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = stablehlo.multiply %0, %gain : tensor<4x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %mask = stablehlo.compare GT, %x, %zero : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xi1>
  %2 = stablehlo.select %mask, %1, %zero : tensor<4x4xi1>, tensor<4x4xf32>
  %3 = stablehlo.dot_general %2, %w1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.multiply %3, %gain : tensor<4x4xf32>
  %5 = stablehlo.select %mask, %4, %zero : tensor<4x4xi1>, tensor<4x4xf32>
  %6 = stablehlo.dot_general %5, %w2, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = stablehlo.multiply %6, %gain : tensor<4x4xf32>
  %8 = stablehlo.select %mask, %7, %zero : tensor<4x4xi1>, tensor<4x4xf32>
  return %8 : tensor<4x4xf32>
}

func.func @skips(%x: tensor<4xf32>) -> tensor<4xf32> {
  %s = "pcp.stop_gradient"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %0 = stablehlo.sine %s : tensor<4xf32>
  %1 = stablehlo.cosine %0 : tensor<4xf32>
  %2 = stablehlo.sine %1 : tensor<4xf32>
  %3 = stablehlo.cosine %2 : tensor<4xf32>
  %4 = stablehlo.add %1, %3 : tensor<4xf32>
  return %4 : tensor<4xf32>
}
