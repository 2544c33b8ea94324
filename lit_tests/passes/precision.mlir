// RUN: pcp-opt %s --pcp-precision="compute=bf16" | filecheck %s
// RUN: pcp-opt %s --pcp-precision="compute=bf16" --pcp-precision="compute=bf16" | filecheck %s
// RUN: pcp-opt %s --pcp-precision="compute=f16" | filecheck %s --check-prefix=F16
// RUN: pcp-opt %s --pcp-precision="compute=bf16 params=bf16 rounding=stochastic" | filecheck %s --check-prefix=PARAMS
// RUN: pcp-opt %s --pcp-precision | filecheck %s --check-prefix=NONE
// RUN: not pcp-opt %s --pcp-precision="compute=tf32" 2>&1 | filecheck %s --check-prefix=TF32
// RUN: not pcp-opt %s --pcp-precision="params=bf16" 2>&1 | filecheck %s --check-prefix=NEAREST
// RUN: not pcp-opt %s --pcp-precision="compute=bf61" 2>&1 | filecheck %s --check-prefix=NEAR
// RUN: not pcp-opt %s --pcp-precision="func=loss" 2>&1 | filecheck %s --check-prefix=MISSING

// Products take rounded operands, each rounded once; a bias and a mask of their results
// follow; exponentials, sums and what is exact by attribute stay f32.

// CHECK: module attributes {pcp.precision = "params=f32,compute=bf16,reduce=f32"}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %arg0: tensor<4x4xf32> {pcp.compute = bf16, pcp.name = "w"
// CHECK-SAME: %arg1: tensor<4xf32> {pcp.compute = bf16, pcp.name = "b"
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.name = "gain"
// CHECK: %[[X:.*]] = stablehlo.convert %arg3 : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK: %[[W:.*]] = stablehlo.convert %arg0 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK: stablehlo.dot_general %[[X]], %[[W]]{{.*}}-> tensor<2x4xbf16>
// CHECK: %[[B:.*]] = stablehlo.convert %arg1 : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK: stablehlo.broadcast_in_dim %[[B]], dims = [1] : (tensor<4xbf16>) -> tensor<2x4xbf16>
// CHECK: %[[SUM:.*]] = stablehlo.add {{.*}} : tensor<2x4xbf16>
// CHECK: %[[MASKED:.*]] = stablehlo.select {{.*}} : tensor<2x4xi1>, tensor<2x4xbf16>
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[MASKED]] : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK: stablehlo.exponential %[[WIDE]] : tensor<2x4xf32>
// CHECK: stablehlo.multiply {{.*}} : tensor<2x4xf32>
// CHECK: stablehlo.dot_general {{.*}}, %[[W]], {{.*}} -> tensor<2x4xbf16>
// CHECK: stablehlo.dot_general {{.*}}precision = [HIGHEST, HIGHEST]{{.*}}-> tensor<2x4xf32>
// CHECK: stablehlo.while
// CHECK: stablehlo.dot_general {{.*}}, %[[W]], {{.*}} -> tensor<2x4xbf16>
// CHECK: stablehlo.reduce{{.*}} (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
// CHECK-NOT: bf16
// CHECK-LABEL: func.func private @beside
// CHECK-NOT: bf16

// -1e9 is infinite in f16: the mask stays f32.

// F16: stablehlo.add {{.*}} : tensor<2x4xf16>
// F16: stablehlo.select {{.*}} : tensor<2x4xi1>, tensor<2x4xf32>

// PARAMS-LABEL: func.func @main(
// PARAMS-SAME: %arg0: tensor<4x4xbf16>
// PARAMS-SAME: %arg2: tensor<4xbf16>
// PARAMS: stablehlo.dot_general {{.*}}, %arg0, {{.*}} -> tensor<2x4xbf16>
// PARAMS: stablehlo.convert %arg2 : (tensor<4xbf16>) -> tensor<4xf32>

// NONE-NOT: bf16
// TF32: pcp-precision: precision: compute=tf32: no target has such products
// NEAREST: params=bf16 loses updates smaller than its last place; keep params=f32, or add rounding=stochastic
// NEAR: compute=bf61 is not one of f32, bf16, f16. Did you mean 'bf16'?
// MISSING: pcp-precision: the module has no function @loss

func.func @main(
    %w: tensor<4x4xf32> {pcp.name = "w", pcp.role = "param"},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param"},
    %gain: tensor<4xf32> {pcp.name = "gain", pcp.role = "param"},
    %x: tensor<2x4xf32> {pcp.name = "x", pcp.role = "data"},
    %mask: tensor<2x4xi1> {pcp.name = "mask", pcp.role = "data"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<-1.0e9> : tensor<2x4xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<2x4xf32>
  %3 = stablehlo.select %mask, %2, %none : tensor<2x4xi1>, tensor<2x4xf32>
  %4 = stablehlo.exponential %3 : tensor<2x4xf32>
  %5 = stablehlo.broadcast_in_dim %gain, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<2x4xf32>
  %7 = stablehlo.dot_general %6, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %8 = stablehlo.dot_general %7, %w, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %9:2 = stablehlo.while(%i = %c0, %h = %8) : tensor<i32>, tensor<2x4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %k = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      stablehlo.return %j, %k : tensor<i32>, tensor<2x4xf32>
    }
  %10 = stablehlo.reduce(%9#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
  return %10 : tensor<f32>
}

func.func private @beside(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
