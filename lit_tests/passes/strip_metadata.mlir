// RUN: pcp-opt %s --pcp-strip-metadata | filecheck %s

// CHECK-LABEL: module {
// CHECK-NOT: pcp
// CHECK: func.func @main(%arg0: tensor<4xf32> {iree.abi.output = 0 : index}) -> tensor<4xf32>
// CHECK-NEXT: stablehlo.add %arg0, %arg0 : tensor<4xf32>
module attributes {pcp.optimizer = "adamw"} {
  "pcp.mesh"() {axes = [#pcp.axis<"workers", -1>], devices = [], sym_name = "w"} : () -> ()
  func.func @main(%x: tensor<4xf32> {iree.abi.output = 0 : index, pcp.role = "data"}) -> (tensor<4xf32> {pcp.name = "y"}) {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
