// RUN: pcp-opt %s --pass-pipeline="builtin.module(pcp-remat{segments=2})" | filecheck %s
// RUN: pcp-opt %s --pass-pipeline="builtin.module(pcp-remat{policy=everything_saveable})" | filecheck %s --check-prefix=KEEP

// The first segment runs again from an input that waits for the cotangent; the
// last segment's values are at hand.
// CHECK-LABEL: func.func @main_grad(
// CHECK: %[[A:.+]] = stablehlo.sine %arg0
// CHECK: %[[B:.+]] = stablehlo.sine %[[A]]
// CHECK: stablehlo.reduce
// CHECK: %[[G:.+]] = stablehlo.cosine %[[C:.+]] :
// CHECK: %[[E:.+]] = stablehlo.slice %[[G]] [0:1]
// CHECK: %[[I:.+]] = stablehlo.bitcast_convert %[[E]] : (tensor<1xf32>) -> tensor<1xi32>
// CHECK: %[[O:.+]] = stablehlo.or %[[I]], %{{.+}} : tensor<1xi32>
// CHECK: %[[P:.+]] = stablehlo.compare{{ +}}EQ, %[[O]]
// CHECK: %[[Q:.+]] = stablehlo.broadcast_in_dim %[[P]], dims = [0]
// CHECK: %[[IN:.+]] = stablehlo.select %[[Q]], %{{.+}}, %arg0 : tensor<8xi1>
// CHECK: %[[A2:.+]] = stablehlo.sine %[[IN]]
// CHECK: %[[DB:.+]] = stablehlo.cosine %[[A2]]
// CHECK: stablehlo.multiply %[[G]], %[[DB]]
// KEEP-LABEL: func.func @main_grad(
// KEEP-NOT: select
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
