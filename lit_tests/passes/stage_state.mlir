// RUN: pcp-opt %s --pcp-stage='stages=2 microbatches=1' --pcp-schedule='kind=gpipe' --pcp-lower-schedule --pcp-verify-plan | filecheck %s

// A forward function in one piece keeps its state where it is read. What is made of data
// alone each stage makes itself, and a marked result is sent to its stage.
// CHECK-LABEL: module @mesh_0
// CHECK: func.func @decode(%{{.*}} {pcp.name = "w0", pcp.role = "frozen"}, %{{.*}} {pcp.name = "c0", pcp.role = "state"}, %{{.*}} {pcp.name = "x", pcp.role = "data"}) -> (tensor<4xf32> {pcp.name = "y", pcp.role = "result"{{.*}}}, tensor<4xf32> {pcp.name = "c0", pcp.role = "state"})
// CHECK: "pcp.send"
// CHECK-NOT: "pcp.send"
// CHECK: "pcp.recv"
// CHECK: func.func @alone(%{{.*}} {pcp.name = "x", pcp.role = "data"})
// CHECK: stablehlo.tanh
// CHECK-LABEL: module @mesh_1
// CHECK: func.func @decode(%{{.*}} {pcp.name = "w1", pcp.role = "frozen"}, %{{.*}} {pcp.name = "c1", pcp.role = "state"}, %{{.*}} {pcp.name = "x", pcp.role = "data"}) -> (tensor<4xf32> {pcp.name = "c1", pcp.role = "state"})
// CHECK: "pcp.recv"
// CHECK-NOT: "pcp.recv"
// CHECK: "pcp.send"
// CHECK: func.func @alone(%{{.*}} {pcp.name = "x", pcp.role = "data"})
// CHECK: stablehlo.tanh
func.func @decode(%w0: tensor<4xf32> {pcp.name = "w0", pcp.role = "frozen"}, %w1: tensor<4xf32> {pcp.name = "w1", pcp.role = "frozen"}, %c0: tensor<4xf32> {pcp.name = "c0", pcp.role = "state"}, %c1: tensor<4xf32> {pcp.name = "c1", pcp.role = "state"}, %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> (tensor<4xf32> {pcp.name = "y", pcp.role = "result", pcp.stage = 0 : i64}, tensor<4xf32> {pcp.name = "c0", pcp.role = "state"}, tensor<4xf32> {pcp.name = "c1", pcp.role = "state"}) {
  %turn = stablehlo.cosine %x : tensor<4xf32>
  %0 = stablehlo.multiply %turn, %w0 {pcp.stage = 0 : i64} : tensor<4xf32>
  %k0 = stablehlo.add %c0, %0 {pcp.stage = 0 : i64} : tensor<4xf32>
  %1 = stablehlo.multiply %k0, %w1 {pcp.stage = 1 : i64} : tensor<4xf32>
  %k1 = stablehlo.add %c1, %1 {pcp.stage = 1 : i64} : tensor<4xf32>
  %y = stablehlo.multiply %k1, %turn {pcp.stage = 1 : i64} : tensor<4xf32>
  return %y, %k0, %k1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func @alone(%x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> (tensor<4xf32> {pcp.name = "h", pcp.role = "result"}) {
  %h = stablehlo.tanh %x : tensor<4xf32>
  return %h : tensor<4xf32>
}
