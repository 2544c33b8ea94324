// RUN: pcp-opt %s --pass-pipeline="builtin.module(pcp-remat{segments=2})" | filecheck %s
// RUN: pcp-opt %s --pass-pipeline="builtin.module(pcp-remat{policy=everything_saveable})" | filecheck %s --check-prefix=KEEP

// The first segment runs again behind a barrier that waits for the cotangent; the
// last segment's values are at hand.
// CHECK-LABEL: func.func @main_grad(
// CHECK: %[[A:.+]] = stablehlo.sine %arg0
// CHECK: %[[B:.+]] = stablehlo.sine %[[A]]
// CHECK: stablehlo.reduce
// CHECK: %[[G:.+]] = stablehlo.cosine %[[C:.+]] :
// CHECK: %[[IN:.+]]:2 = stablehlo.optimization_barrier %arg0, %[[G]]
// CHECK: %[[A2:.+]] = stablehlo.sine %[[IN]]#0
// CHECK: %[[DB:.+]] = stablehlo.cosine %[[A2]]
// CHECK: stablehlo.multiply %[[IN]]#1, %[[DB]]
// KEEP-LABEL: func.func @main_grad(
// KEEP-NOT: optimization_barrier
// KEEP: return
func.func @main_grad(%x: tensor<8xf32>) -> (tensor<f32>, tensor<8xf32>) {
  %a = stablehlo.sine %x : tensor<8xf32>
  %b = stablehlo.sine %a : tensor<8xf32>
  %c = stablehlo.sine %b : tensor<8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %loss = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %dc = stablehlo.cosine %b : tensor<8xf32>
  %db = stablehlo.cosine %a : tensor<8xf32>
  %g1 = stablehlo.multiply %dc, %db : tensor<8xf32>
  %da = stablehlo.cosine %x : tensor<8xf32>
  %g0 = stablehlo.multiply %g1, %da : tensor<8xf32>
  return %loss, %g0 : tensor<f32>, tensor<8xf32>
}
