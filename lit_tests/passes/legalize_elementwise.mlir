// RUN: pcp-opt %s --pcp-legalize --split-input-file | filecheck %s

// A power with a run-time exponent is one of |x|, by its bits; IREE knows constant ones.
// CHECK-LABEL: func.func @power
// CHECK: %[[A:.*]] = stablehlo.abs %arg0
// CHECK: stablehlo.bitcast_convert %[[A]] : (tensor<3xf32>) -> tensor<3xui32>
// CHECK-NOT: stablehlo.power
// CHECK: return
func.func @power(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.power %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// CHECK-LABEL: func.func @square
// CHECK-NOT: stablehlo.abs
// CHECK: stablehlo.power %arg0
// CHECK: return
func.func @square(%x: tensor<3xf32>) -> tensor<3xf32> {
  %y = stablehlo.constant dense<2.0> : tensor<3xf32>
  %0 = stablehlo.power %x, %y : tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----

// IREE's sort is not stable: the position is the last key.
// CHECK-LABEL: func.func @sort
// CHECK: %[[I:.*]] = stablehlo.iota dim = 0 : tensor<4xi32>
// CHECK: "stablehlo.sort"(%arg0, %arg1, %[[I]]) <{dimension = 0 : i64, is_stable = false}>
// CHECK: stablehlo.compare LT, %arg2, %arg3
// CHECK: return
func.func @sort(%k: tensor<4xf32>, %v: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
    %l = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
}

// -----

// A sort that is cut is no top_k: IREE takes it for one, and fails.
// CHECK-LABEL: func.func @cut
// CHECK: %[[S:.*]]:3 = "stablehlo.sort"
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[S]]#0
// CHECK: stablehlo.slice %[[B]] [0:2]
// CHECK: return
func.func @cut(%k: tensor<4xf32>, %v: tensor<4xf32>) -> (tensor<2xf32>, tensor<3xf32>) {
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
    %l = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %1 = stablehlo.slice %0#0 [0:2] : (tensor<4xf32>) -> tensor<2xf32>
  %2 = stablehlo.slice %0#1 [0:3] : (tensor<4xf32>) -> tensor<3xf32>
  return %1, %2 : tensor<2xf32>, tensor<3xf32>
}

// -----

// So is one that need not be stable; it stays as it is otherwise.
// CHECK-LABEL: func.func @cut_unstable
// CHECK: %[[S:.*]]:2 = "stablehlo.sort"(%arg0, %arg1)
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier %[[S]]#1
// CHECK: stablehlo.slice %[[B]] [0:3]
// CHECK: return
func.func @cut_unstable(%k: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<3xf32> {
  %0:2 = "stablehlo.sort"(%k, %v) <{dimension = 0 : i64, is_stable = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
    %l = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %l : tensor<i1>
  }) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %1 = stablehlo.slice %0#1 [0:3] : (tensor<4xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

// -----

// Complex numbers are padded by parts.
// CHECK-LABEL: func.func @pad
// CHECK-COUNT-2: stablehlo.pad %{{.*}} : (tensor<3xf32>, tensor<f32>) -> tensor<5xf32>
// CHECK: stablehlo.complex
// CHECK-NOT: stablehlo.pad
// CHECK: return
func.func @pad(%x: tensor<3xcomplex<f32>>, %z: tensor<complex<f32>>) -> tensor<5xcomplex<f32>> {
  %0 = stablehlo.pad %x, %z, low = [1], high = [1], interior = [0] : (tensor<3xcomplex<f32>>, tensor<complex<f32>>) -> tensor<5xcomplex<f32>>
  return %0 : tensor<5xcomplex<f32>>
}

// -----

// IREE has no splat of 128 bits.
// CHECK-LABEL: func.func @constant
// CHECK-DAG: stablehlo.constant dense<1.000000e+00> : tensor<3xf64>
// CHECK-DAG: stablehlo.constant dense<2.000000e+00> : tensor<3xf64>
// CHECK: stablehlo.complex
func.func @constant() -> tensor<3xcomplex<f64>> {
  %0 = stablehlo.constant dense<(1.0, 2.0)> : tensor<3xcomplex<f64>>
  return %0 : tensor<3xcomplex<f64>>
}

// -----

// Bytes as indices: clamped as what they are, then widened.
// CHECK-LABEL: func.func @slice
// CHECK: %[[C:.*]] = stablehlo.clamp %{{.*}}, %arg1, %{{.*}} : tensor<ui8>
// CHECK: %[[I:.*]] = stablehlo.convert %[[C]] : (tensor<ui8>) -> tensor<i32>
// CHECK: stablehlo.dynamic_slice %arg0, %[[I]]
func.func @slice(%x: tensor<5xf32>, %i: tensor<ui8>) -> tensor<2xf32> {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [2] : (tensor<5xf32>, tensor<ui8>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
