// RUN: pcp-opt %s --pcp-declare-grad=name=grad | filecheck %s
// RUN: pcp-opt %s --pcp-declare-grad=name=grad --pcp-declare-grad=name=grad | filecheck %s
// RUN: pcp-opt %s --pcp-declare-grad=name=grad --pcp-grad -o %t.one && pcp-opt %s --pcp-grad='func=main name=grad' | diff - %t.one
// RUN: not pcp-opt %s --pcp-declare-grad=name=main 2>&1 | filecheck %s --check-prefix=TAKEN
// RUN: not pcp-opt %s --pcp-declare-grad=name=g --pcp-declare-grad='func=other name=g' 2>&1 | filecheck %s --check-prefix=OTHER

// CHECK: func.func @main
// CHECK-NOT: stablehlo.cosine
// CHECK: "pcp.grad"() {fn = @main, sym_name = "grad", wrt = []} : () -> ()
// CHECK-NOT: pcp.grad
// TAKEN: @main is already in the module, and is to be the gradient of @main; rename it
// OTHER: pcp.grad: training needs the value and the gradient of @other here
func.func @main(%w: tensor<f32> {pcp.role = "param"}) -> tensor<f32> {
  %y = stablehlo.sine %w : tensor<f32>
  return %y : tensor<f32>
}
func.func @other(%w: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
