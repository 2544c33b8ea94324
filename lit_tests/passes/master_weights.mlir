// RUN: pcp-opt %s --pcp-master-weights | filecheck %s
// RUN: pcp-opt %s --pcp-master-weights --pcp-master-weights | filecheck %s
// RUN: pcp-opt %s --pcp-master-weights --pcp-grad='func=main name=grad' --pcp-expand-training='optimizer=sgd{lr=0.1} algorithm=none' --cse --canonicalize | filecheck %s --check-prefix=TRAIN
// RUN: not pcp-opt %s --pcp-master-weights=func=loss 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not pcp-opt %s --pcp-master-weights --pcp-expand-training="optimizer=sgd{lr=0.1} algorithm=mezo" 2>&1 | filecheck %s --check-prefix=MEZO

// Parameters narrower than f32 become f32, rounded in front of what uses them first;
// data stays, and so does what is wide already. The loss becomes f32.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %arg0: tensor<4xf32> {pcp.compute = bf16, {{.*}}pcp.name = "w"
// CHECK-SAME: %arg1: tensor<4xf16> {{.*}}pcp.name = "x"
// CHECK-SAME: %arg2: tensor<4xf32> {pcp.init = "ones", pcp.name = "b"
// CHECK-SAME: %arg3: tensor<4xf32> {pcp.compute = f16, {{.*}}pcp.name = "idle"
// CHECK-SAME: -> (tensor<f32> {pcp.compute = bf16}) {
// CHECK: %[[X:.*]] = stablehlo.convert %arg1 : (tensor<4xf16>) -> tensor<4xf32>
// CHECK: %[[W:.*]] = stablehlo.convert %arg0 : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK: stablehlo.multiply %[[W]], %[[W]] : tensor<4xbf16>
// CHECK: %[[LOSS:.*]] = stablehlo.reduce
// CHECK: %[[WIDE:.*]] = stablehlo.convert %[[LOSS]] : (tensor<bf16>) -> tensor<f32>
// CHECK: return %[[WIDE]] : tensor<f32>

// The gradient and the update are in f32: nothing is rounded between two steps.

// TRAIN: func.func @grad({{.*}} -> (tensor<f32> {{.*}}, tensor<4xf32> {pcp.name = "w", pcp.role = "grad"}
// TRAIN: func.func @apply(%arg0: tensor<4xf32> {pcp.name = "w", pcp.role = "param"}
// TRAIN-NOT: bf16
// TRAIN: func.func @eval

// MISSING: pcp-master-weights: the module has no function @loss
// MEZO: mezo takes the difference of two losses near each other, and parameter 'w' is rounded to bf16, which swallows it; export the model in f32, or take forward_gradient

func.func @main(
    %w: tensor<4xbf16> {pcp.name = "w", pcp.role = "param", pcp.init = "ones"},
    %x: tensor<4xf16> {pcp.name = "x", pcp.role = "data"},
    %b: tensor<4xf32> {pcp.name = "b", pcp.role = "param", pcp.init = "ones"},
    %idle: tensor<4xf16> {pcp.name = "idle", pcp.role = "param", pcp.init = "ones"})
    -> tensor<bf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %0 = stablehlo.convert %x : (tensor<4xf16>) -> tensor<4xf32>
  %1 = stablehlo.multiply %0, %b : tensor<4xf32>
  %2 = stablehlo.convert %1 : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = stablehlo.multiply %w, %w : tensor<4xbf16>
  %4 = stablehlo.add %2, %3 : tensor<4xbf16>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4xbf16>, tensor<bf16>) -> tensor<bf16>
  return %5 : tensor<bf16>
}
