// RUN: pcp-opt %s --split-input-file --pcp-bucket-collectives=bytes=64000 | filecheck %s

// Equal shares: a row for each member, of all tensors. Each gets its row's sums.
// CHECK-LABEL: func.func @scatters
// CHECK: %[[A:.*]] = stablehlo.reshape %arg0 : (tensor<4xf32>) -> tensor<2x2xf32>
// CHECK: %[[T:.*]] = stablehlo.transpose %{{.*}}, dims = [1, 0, 2] : (tensor<3x2x1xf32>) -> tensor<2x3x1xf32>
// CHECK: %[[B:.*]] = stablehlo.reshape %[[T]] : (tensor<2x3x1xf32>) -> tensor<2x3xf32>
// CHECK: %[[C:.*]] = stablehlo.concatenate %[[A]], %[[B]], dim = 1 : {{.*}} -> tensor<2x5xf32>
// CHECK: %[[R:.*]] = "pcp.reduce_scatter"(%[[C]]) {{.*}}dim = 0 {{.*}}sizes = []} : (tensor<2x5xf32>) -> tensor<1x5xf32>
// CHECK-NOT: pcp.reduce_scatter
// CHECK: stablehlo.slice %[[R]] [0:1, 0:2]
// CHECK: stablehlo.slice %[[R]] [0:1, 2:5]
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @scatters(%a: tensor<4xf32>, %b: tensor<3x2xf32>) -> (tensor<2xf32>, tensor<3x1xf32>) {
  %0 = "pcp.reduce_scatter"(%a) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<4xf32>) -> tensor<2xf32>
  %1 = "pcp.reduce_scatter"(%b) {axes = ["dp"], dim = 1, kind = "sum", mesh = @m, sizes = []} : (tensor<3x2xf32>) -> tensor<3x1xf32>
  return %0, %1 : tensor<2xf32>, tensor<3x1xf32>
}

// -----

// Gathers of equal shares; not one of unequal shares, nor one that is computed with.
// CHECK-LABEL: func.func @gathers
// CHECK: "pcp.all_gather"(%arg2) {{.*}}sizes = [2, 1]}
// CHECK: "pcp.all_gather"(%arg0) {{.*}} -> tensor<4xf32>
// CHECK-NEXT: stablehlo.tanh
// CHECK: %[[C:.*]] = stablehlo.concatenate %{{.*}}, dim = 1 : {{.*}} -> tensor<1x5xf32>
// CHECK: %[[R:.*]] = "pcp.all_gather"(%[[C]]) {{.*}}dim = 0 {{.*}} : (tensor<1x5xf32>) -> tensor<2x5xf32>
// CHECK-NOT: pcp.all_gather
// CHECK: %[[S:.*]] = stablehlo.slice %[[R]] [0:2, 2:5]
// CHECK: %[[P:.*]] = stablehlo.reshape %[[S]] : (tensor<2x3xf32>) -> tensor<2x3x1xf32>
// CHECK: stablehlo.transpose %[[P]], dims = [1, 0, 2] : (tensor<2x3x1xf32>) -> tensor<3x2x1xf32>
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @gathers(%a: tensor<2xf32>, %b: tensor<3x1xf32>, %c: tensor<2xf32>) -> (tensor<4xf32>, tensor<3x2xf32>, tensor<3xf32>, tensor<4xf32>) {
  %0 = "pcp.all_gather"(%a) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<2xf32>) -> tensor<4xf32>
  %2 = "pcp.all_gather"(%c) {axes = ["dp"], dim = 0, mesh = @m, sizes = [2, 1]} : (tensor<2xf32>) -> tensor<3xf32>
  %3 = "pcp.all_gather"(%a) {axes = ["dp"], dim = 0, mesh = @m, sizes = []} : (tensor<2xf32>) -> tensor<4xf32>
  %4 = stablehlo.tanh %3 : tensor<4xf32>
  %1 = "pcp.all_gather"(%b) {axes = ["dp"], dim = 1, mesh = @m, sizes = []} : (tensor<3x1xf32>) -> tensor<3x2xf32>
  return %0, %1, %2, %4 : tensor<4xf32>, tensor<3x2xf32>, tensor<3xf32>, tensor<4xf32>
}

// -----

// A bucket of shares is small: 800 and 400 bytes do not go together in 64000 / 64.
// CHECK-LABEL: func.func @small
// CHECK: "pcp.reduce_scatter"{{.*}}(tensor<200xf32>)
// CHECK: "pcp.reduce_scatter"{{.*}}(tensor<100xf32>)
// CHECK: "pcp.reduce_scatter"{{.*}}(tensor<200xf32>)
// CHECK-NOT: pcp.reduce_scatter
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @small(%a: tensor<200xf32>, %b: tensor<100xf32>, %c: tensor<200xf32>) -> (tensor<100xf32>, tensor<50xf32>, tensor<100xf32>) {
  %0 = "pcp.reduce_scatter"(%a) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<200xf32>) -> tensor<100xf32>
  %1 = "pcp.reduce_scatter"(%b) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<100xf32>) -> tensor<50xf32>
  %2 = "pcp.reduce_scatter"(%c) {axes = ["dp"], dim = 0, kind = "sum", mesh = @m, sizes = []} : (tensor<200xf32>) -> tensor<100xf32>
  return %0, %1, %2 : tensor<100xf32>, tensor<50xf32>, tensor<100xf32>
}
